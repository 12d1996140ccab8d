"""A trained model in use: written into a bundle, loaded, asked, and adapted to a new client.

bundle          save_bundle and open_bundle: one file with weights, encoder, schema and metrics
rebuild         the model of a bundle, made again from its name or from a module
onnx_scorer     the same scores from the ONNX file in a bundle, without the module's code
served_model    load, and ServedModel: predict, evaluate, adapt
predictions     what a served model answers with
recommend       the best items for a client
read_frame      CSV and Parquet files as frames
"""
