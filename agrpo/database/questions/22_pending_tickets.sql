-- Which groups are still on their way?
--
-- Groups that no step has consumed, by how far they have come. After a run has ended they are what was sampled too much;
-- while it goes on, a claimed group that is far older than the others belongs to a generator that died. After going back
-- there are void ones, which the next step drops: reissued, void_base and void_version.
--
-- reason: claimed (being generated), generated (being scored), scored (waiting for the learner), or why it is void
-- num_groups: how many
-- first_ticket, last_ticket: from and to
-- oldest_version: lowest policy version that sampled one of them
-- claimed_at: of the first of them
SELECT
    reason, count(*) AS num_groups, min(ticket) AS first_ticket, max(ticket) AS last_ticket,
    min(model_version) AS oldest_version, min(claimed_at) AS claimed_at
FROM group_status
WHERE status = 'pending'
GROUP BY reason
ORDER BY first_ticket;
