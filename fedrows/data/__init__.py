"""One federation in memory: examples, index sets and slots of every client.

federation      FederatedData, and how it is built
examples        flat columns, client after client; index sets and slots from them
batches         the batches that a cohort trains on in a round
narrow          a cohort's examples, cut to the rows that its clients have
layout          what the columns of somebody's data mean
frames          columns from data frames, or from pieces by client
column_checks   columns made into numbers, or refused
vocabulary      which row each value of a column has
values          what a value is whatever its type: its text, and its hash
encoder         how data were encoded
encode_rows     new rows, encoded in the same way
splits          which examples are held out
histories       what logs of items have in common
leave_one_out   a log of items as data to be ranked
unheld          items that clients do not hold, drawn without replacement
fresh_negatives pools of such items, drawn anew in every round
"""
