"""Several processes that train one policy, its weights, gradients and optimizer shared out among them (FSDP2).

    group      the processes as torch.distributed knows them, and what they say to each other
    recruits   who brings the further ones, and what is told where one is lost
    sharding   a model's weights split over a group, and made whole again

Rank 0 decides: it announces what is to be done by name, and every rank does the same with its share (`policy/trainee.py`).
A group of one is no group: nothing is split, and nothing is said.
"""
