"""Federations on disk, in columns that are mapped into memory.

parquet            read_parquet: a federation from Parquet files of any size
store              save_data and open_data: any federation, written once and opened at once
store_writer       how the files of a store are written
parquet_table      Parquet files as one table, read batch by batch
held_out           which rows of the table are test or validation examples
feature_codes      feature values as whole numbers, before all of them are known
spill              rows sorted into parts, each with all examples of some clients
parquet_to_store   the four steps from a Parquet table to a store
store_columns      the last of them: rows, index sets and slots, part after part
"""
