"""The engine `vllm`, from its servers' HTTP up.

endpoint     one server's HTTP: JSON there and back, and what went wrong in our words
facts        what a server says of itself, and what that leaves to be desired
completing   a request's body, and its answer as a turn
replica      one server: whether it is there, which weights it has, how it takes others
engine       all replicas as an `Engine`: choosing, asking again, waiting out an outage
environment  where vLLM is installed
command      how a server of the run's own is started
devices      which GPUs such a server takes
"""
