"""The same federation in other simulators, each as someone who knows it would write it.

They are started by `fedrows bench peers`, each in an environment of its own: what is to be
installed there is in NAME.txt. `worker` tells how they are spoken to.
"""
