-- With which settings did it run, and where did they come from?
--
-- Every setting, also those nobody set. What differs from the defaults: WHERE origin <> 'default'.
--
-- setting: table and key, such as step.groups or rewards[0].weight
-- value: as the run uses it
-- origin: the run file, --set, or default
SELECT setting, value, origin
FROM settings
ORDER BY setting;
