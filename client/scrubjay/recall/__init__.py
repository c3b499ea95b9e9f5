"""Which notes answer a question: pure functions, without a store and without a model.

`words` turns text into what the index holds, `synonyms` widens a question, `ranking` orders
candidates, `context` writes them down for a prompt.
"""
