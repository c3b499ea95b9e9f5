"""Scrubjay inside agent frameworks: one framework, one module.

Modules with a leading underscore know no framework: what they do for one adapter they do for all.
"""
