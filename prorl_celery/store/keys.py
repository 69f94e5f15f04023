"""Every Redis key of ours: its name, its type, what it holds.

A key is the prefix (`PRORL_KEY_PREFIX`, "prorl:") and the parts joined by ":". Scripts build names the same way
(`key(...)` in `lua/lib.lua`), since most names depend on what a job's record says. All keys must therefore live in
one Redis, which the broker asks for anyway (no Redis Cluster). Times are integer milliseconds of the server's clock.

    job:<id>                hash     the job's record, see `RECORD`. Once the result has expired only a tombstone is
                                     left (the fingerprint, the state), which Redis itself expires
    data:<id>               hash     blobs: `spec` (request), `init`, `rollout` (outputs), `summary` (artifacts, eval)
    turns:<id>              list     the turn log: a blob for each turn and for each call of one logged in parts
    events:<id>             list     what happened to it: "<number> <ms> <what>", the latest 2,000; expires
    index:<state>           zset     ended jobs in that state; score: order of creation
    index:<state>:<stage>   zset     live jobs (`queued`, `running`) by stage; score: order of creation
    batch:<batch>           zset     a batch's jobs; score: order of creation
    leases                  zset     "<fence>|<id>" of every claim; score: when it lapses, 0 when its process is dead
    cancels                 zset     running jobs that should be cancelled; score: when that was asked
    stalled                 zset     running jobs that do not move; score: since when
    lost:<process>          string   how many jobs ran in a process that was lost; expires
    queues                  set      queues that were published to
    queued:<level>:<queue>  zset     jobs whose message waits in a queue; score: order of publishing
    passed                  hash     "<level>:<queue>" -> highest order of publishing claimed, and what the lost-message
                                     rule remembers of it (`:snap`, `:at`, `:old`, `:empty`; see `sweep_queues.lua`)
    on:<node>               set      jobs that are queued for a node or running on it
    seq                     string   counter that gives the orders of creation and of publishing
    expiry                  zset     ended jobs; score: when their result expires
    dead                    zset     of those, what failed for a reason that another attempt might have cured, after the
                                     last one; score: when
    counts                  hash     what went on, as counters: `retries:<kind>:<stage>` (attempts, or evals, that
                                     failed and were followed by another), `lost:<stage>`, `went_on`, `started_over`
                                     (from rollout or eval), `failed:<kind>` (jobs); of batches `batches:<state>` (that
                                     ended so), `groups:<state>` (that closed so), `waste_ms:<why>` and
                                     `waste_tokens:<why>` (what was spent on what is thrown away)
    results                 stream   one entry per ended job: `job`, and where given `batch`, `tags`
    results:trimmed         string   id of the last entry that was cut from the stream
    backends                hash     url -> record (JSON, see `scheduling/backends.py`)
    heap:<model>            zset     urls that may be given to jobs of a model; score: live jobs / weight
    joining:<model>         hash     url of a backend that joined below the others' level -> its credit, in jobs
    assigned:<url>          set      live jobs that a backend is assigned to; its size is the assigned count
    nodes                   hash     "<node> <boot>" -> record (JSON)
    processes:<node> <boot> hash     stage process -> when its word lapses, and its record (JSON); expires
    nodes:seen              zset     "<node> <boot>"; score: when the record lapses
    draining                set      "<node> <boot>" of nodes that take no new jobs
    policy:epoch            string   counter of the changes to pauses and weights
    policy:pauses           hash     `all` or `model:<model>` -> pause (JSON), over when it lapses or is taken out
    policy:processes        hash     process that makes model calls -> when its word lapses, and what it told (JSON);
                                     expires
    policy:op:<id>          string   the reply to an operation on the policy; expires
    dapo:<batch>            hash     a batch's record and counters, see `lua/groups.lua`; expires after its end
    dapo_prompts:<batch>    hash     prompt_id -> number of the prompt in the batch, and fingerprint of its instance
    dapo_names:<batch>      hash     number -> prompt_id
    dapo_specs:<batch>      hash     number -> the request that all samples of the prompt have in common (blob)
    dapo_waiting:<batch>    zset     numbers of prompts that were not started; score: the order in which they are
    dapo_open:<batch>       set      groups in flight, "<batch>:<number>"; adopted ones are named by the other batch
    dapo_won:<batch>        list     groups that count, in order of completion
    group:<number>:<batch>  hash     a group's record: owner (batch), state, what its samples came to, job:<sample>
    members:<number>:<batch> set     its jobs that have not ended
    revoked                 zset     jobs that their batch has no more use for; score: since when
    batches                 zset     known batches; score: when they were made
    batches_live            zset     of those, the ones that are being filled
    batches_left            zset     of those, the ones that keep something for another; score: until when
    uniform:<memory>        zset     prompt_ids whose groups were uniform lately; score: how often, as a logarithm that
                                     does not change while the weight decays; expires
    uniform_clock:<memory>  string   how many batches used that memory; expires
    leader                  string   the process that sweeps; expires
    swept                   string   when leases were last looked at

Channels: `done` (a job's id when it ends), `cancel` (a job's id), `event:<id>` (an entry of `events:<id>`), `backends`
(a model when a backend of it becomes usable, a url when that backend was changed, went down or was removed),
`policy` (its epoch when it has changed), `policy:told` (when a process has told something new), `revoked` (jobs were
revoked), `event:batch <batch>` (what became of the batch or of one of its groups).
"""

from __future__ import annotations

import re

RECORD = {
    "hash": "fingerprint of the request, 32 hexadecimal digits",
    "create_op": "id of the operation that created the job",
    "state": "queued, running, completed, failed, cancelled or timed_out",
    "stage": "init, rollout or eval; where it ended, for an ended job",
    "fence": "number of the latest claim",
    "last": "the last step that ended a claim, '<step>:<fence>': tells a replay from a second writer",
    "op": "id of the delivery that made the latest claim",
    "attempt": "tries at the job, the present one included",
    "max": "most attempts, and most evals of one",
    "evals": "evals of this attempt that failed and were charged; absent for none",
    "prio": "priority, 0 to 9",
    "level": "the broker's level of that priority: 0, 3, 6, 9",
    "queue": "the queue of its latest message",
    "seq": "order of creation",
    "created": "when it was accepted",
    "since": "when its present state began",
    "published": "when its latest message was made",
    "active": "when anything last happened to it",
    "finished": "when it ended",
    "q_<stage>": "milliseconds it waited for a stage, r_<stage>: was worked on in it",
    "node": "the node that last held it",
    "on": "the node whose `on:<node>` set has it, or empty",
    "process": "the process that last claimed it, '<node> <boot> <name> <number>'; gone when it has ended",
    "sandboxes": "its live sandboxes as the committing stage named them, blanks between",
    "bound": "1 when the stage it waits for, or is in, needs what was done in them; else empty or absent",
    "backend": "its backend's url; `held`: 1 while it is in that backend's assigned set",
    "nturns": "turns in the log; `turn_bytes`: the log's size",
    "open": "1 while observations of the log's last turn are to come, else empty; `calls`: those that are there",
    "log": "fence of the claim that wrote the turn log",
    "rf": "fence of this attempt's latest rollout claim; the log is this attempt's where `log` equals it",
    "cancel": "when a cancel was asked of the running job",
    "losses": "times its process, or its keeper, was lost while it ran, since it last made progress; absent for none",
    "lost": "where the latest of these met it, '<stage>:<turns>'; a turn more, or that stage's commit, is progress",
    "lost_total": "all times that they were lost",
    "going_on": "1 while its rollout is one that an earlier claim of this attempt began; else absent",
    "spent": "milliseconds of work in those earlier claims",
    "waited": "milliseconds of this claim that were nobody's work, as its last heartbeat told",
    "restarts": "times that a rollout could not be taken over and started over instead",
    "retries": "lives that it was given after it had failed",
    "stall": "what it does when it does not move (JSON: `act`, `thread`, `since`); else absent",
    "entry": "id of its entry in the results stream",
    "reason": "finish_reason of an ended job",
    "reward": "reward, `resolved`: 1 or 0; absent for null",
    "error": "error object, JSON",
    "batch": "batch_id, `group`: group_id, `tags`: JSON, `iid`: instance_id; absent where not given",
    "prompt": "number of its prompt in the batch, `sample`: of its sample, `redraw`: how often that was drawn before",
    "parked": "1 while it waits for another batch to adopt it: no message of it is on its way",
    "sampled": "tokens that were sampled in the turn log, `oldest`: the oldest policy version among them",
}

FORMS = tuple(
    re.compile(form)
    for form in (
        r"(job|data|turns|events):[A-Za-z0-9._:-]+",
        r"index:(completed|failed|cancelled|timed_out|(queued|running):(init|rollout|eval))",
        r"batch:[A-Za-z0-9._:-]+",
        r"queued:[0369]:.+",
        r"(on|heap|joining|assigned|processes|lost):.+",
        r"policy:(epoch|pauses|processes|op:[0-9a-f]+)",
        r"leases|cancels|stalled|queues|passed|seq|expiry|dead|counts|results|results:trimmed|backends|nodes|nodes:seen",
        r"draining|leader|swept|revoked|batches|batches_live|batches_left",
        r"dapo(_prompts|_names|_specs|_waiting|_open|_won)?:[A-Za-z0-9._:-]+",
        r"(group|members):[0-9]+:[A-Za-z0-9._:-]+",
        r"uniform(_clock)?:.+",
    )
)


class Keys:
    """Names the keys under one prefix."""

    __slots__ = ("prefix",)

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def __call__(self, *parts: str) -> str:
        """The key, or channel, of these parts: `keys("job", job_id)`."""
        return self.prefix + ":".join(parts)

    def known(self, key: str) -> bool:
        """Whether a key has one of the forms above."""
        name = key.removeprefix(self.prefix)
        return key.startswith(self.prefix) and any(form.fullmatch(name) for form in FORMS)
