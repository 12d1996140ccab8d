"""Device programs: one client's local training without PyTorch, as ONNX and a manifest.

one_step        one local step of one client as a function of tensors
step_optimizers the optimisers of that step, whose state goes in and comes out
graph           the step recorded as a graph of PyTorch's operations, with free sizes
time_loops      the time loops of LSTM and GRU, which a graph has as one operation each
onnx_step       the graph as an ONNX file of standard operators
manifest        what a device has to know beside the file
program         writes both into a folder
"""
