"""`attach` and its SQL: conditions and columns taken out of queries, so that Spark reads less."""
