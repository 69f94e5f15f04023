"""The soak: many jobs through a service whose parts are killed all the while, and then an account of it.

    trainer   submits, keeps a window of jobs under way, counts what it is told of each end (`trainer`)
    killer    ends one part every few seconds: a worker of any stage, upkeep, API, Redis, backend, keeper (`kills`)
    watcher   follows the jobs that each kill hit until they are at work again (`recovery`)
    auditor   counts at the backends, in the store and on the machine, and has all recounted (`audit`)

What is random is decided by the seed: the jobs, and which part is killed when. What a kill meets is the machine's.
"""
