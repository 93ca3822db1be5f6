"""`attach` and its SQL: conditions and columns taken out of queries, so that Spark reads less.

attached     what users hold: `sql`, `table`, `explain`; table_read: a read that is put together without SQL
views        the temporary views of a session, as tables come and go
tokens       words of a statement, and a reader that cuts it at some of them
changing     DELETE, UPDATE and MERGE as queries of the rows that they write; row_changes: carried out
definitions  CREATE, ALTER and TRUNCATE of a table of the store
parameters   values of a query's parameters, written into its text as literals
statements   statements about tables of the store that are no query, recognised by their first words; INSERT
             that leaves columns out, which rows that are there keep
query        a query's text, tree, references and places; what cannot be read for certain is left alone
joins        the conditions of each reference of a table, by the rules of its joins; conditions: which may be
             tested there; limits: how many rows suffice
aggregates   what tasks can compute of their own rows, for Spark to add up
driver_reads  reads that are made alongside the driver, since a task would take longer to begin
plan         the needs of a whole query, columns among them, also as text for people
"""
