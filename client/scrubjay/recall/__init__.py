"""Lexical recall: pure functions that turn text into index terms, and rank notes for a query.

Nothing here knows a store or a model; the only files read are the word lists in data/, once and when first needed.
`terms` turns text into the numbers that the index stores, `query` splits a message into passages and weighs their
terms, `synonyms` widens a query, `ranking` orders candidates, and `prompt` formats notes for a system prompt.
"""
