"""SQL of views: the text of a program becomes plans."""
