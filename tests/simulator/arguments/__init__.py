"""Arguments of operators that are refused: wrong shapes, dtypes and values, and how it is told."""
