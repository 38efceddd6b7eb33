"""RE2: regular expressions over ASCII names, in time that no pattern can blow up."""
