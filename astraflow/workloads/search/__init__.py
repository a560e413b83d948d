"""Search: retrievers over a corpus, questions that need several articles, and how answers are scored."""
