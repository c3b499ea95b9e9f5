"""The semantic index: vectors of notes, and the ways to compute an embedding."""
