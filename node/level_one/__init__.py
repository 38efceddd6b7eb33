"""Level one: records lifted out of level zero into objects of one partition each."""
