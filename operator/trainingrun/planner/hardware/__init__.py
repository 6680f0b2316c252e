"""What the machines can do: facts about accelerators, instance types, links and CPU nodes, and how to find
the ones that apply from a node's labels, from names, or from numbers that a user declares or the trainer has
measured.

    gpus          the table of accelerators            labels    node labels -> accelerator, refusals
    instances     instance types of clouds             links     what a message of n bytes takes
    cpu           cores                                machine   names -> `planner.cost.types.Machine`
    declared      shapes that are given in numbers, and rates that the trainer measured

Facts only; what a training makes of them is the cost model's. Pure: nothing here asks a cluster.
"""
