"""Adapters: Scrubjay inside agent frameworks, each in a module or a package of its own.

Modules with a leading underscore know no framework; all adapters share them.
"""
