"""Consume, transform, produce, with workers that are killed all the while: is each input there once?"""
