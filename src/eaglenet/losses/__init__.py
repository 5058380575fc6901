"""(scores, positives) -> scalar."""
