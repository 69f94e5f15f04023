"""The keeper: one small process per node that owns every sandbox (`python -m prorl_celery.node.keeper`).

listener      where they connect
service       what clients may ask, over a Unix socket
admission     who waits for a place, in line
sandboxes     the live ones: started, handed out, ended
spares        a few that are started before anybody asks
process       one sandbox's outer process and its pseudo-terminal
work          what takes long, in children, so that nobody waits for it
limits        what holds sandboxes to their memory, processes and CPU
watchdog      looks at the memory of each (counting, measuring), and kills (victims)
warden        the child that works on control groups, since that may block
alarms        the kernel's word that it has killed for memory
terminal      words of the keeper to an agent
orphans       what of a sandbox outlives its outer process
guard         cleans up behind a keeper that was killed
loop          the one thread's events and timers
"""
