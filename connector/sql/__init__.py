"""`attach` and its SQL: finds the columns and conditions of each table in a query, so that Spark reads less.

attached      the object that `attach` returns: `sql`, `table`, `explain`
table_read    a builder of the read of one table, without SQL
views         the temporary views of a session, one for each table
tokens        the tokens of a statement, and a reader of them
statements    statements that the store executes, and INSERT without all columns
definitions   CREATE, ALTER and TRUNCATE of a table
changing      DELETE, UPDATE and MERGE as queries of the rows that they write; row_changes executes them
parameters    replaces the parameters of a query by literals
query         the syntax tree of a query, and its references to tables
joins         the conditions of each reference, by the rules of its joins
conditions    which conditions the read of a table may test
limits        how many rows of a table a LIMIT needs
aggregates    partial aggregates, which tasks compute and Spark adds up
driver_reads  small reads, which the driver makes because a task takes longer to begin
plan          the columns, conditions, limits and aggregates of a whole query
"""
