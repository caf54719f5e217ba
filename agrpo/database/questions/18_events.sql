-- What happened to the stages: starts, failures, restarts, checkpoints?
--
-- The newest events that are not routine. What an event carries is JSON, so payload->>'$.stage' gets
-- at its parts.
--
-- $rows INTEGER = 20: events to show
--
-- happened_at: when
-- kind: what, such as checkpoint, replayed, stage_restarted, finished
-- stream: who tells it
-- attempt: of the learner; NULL: the event is not the learner's
-- payload: the rest, as JSON
SELECT happened_at, kind, stream, attempt, payload
FROM events
WHERE kind NOT IN ('published', 'version_served')
ORDER BY happened_at DESC, stream, number DESC
LIMIT $rows;
