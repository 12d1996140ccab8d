"""The mathematics of the theorems, apart from the experiments: objectives, spectra, iterates."""
