"""`scripts/mix`: thousands of partitions under all kinds of work, in too little memory."""
