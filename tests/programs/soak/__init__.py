"""A long run of a real cluster under all that it is for: does storage stay what retention keeps?"""
