"""Trains a plain module, written for one client, over a whole cohort.

lifted                the model: a module lifted by torch.func.vmap
module_checks         what cannot be lifted, explained
trial_step            a module is tried out on two examples before a run
replaced_operations   operations of PyTorch that are replaced while clients train
calibration           moments of normalisation, measured over a fixed sample
traced                steps replayed from a trace on a CPU
"""
