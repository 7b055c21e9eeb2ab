-- name: get
SELECT v.version, v.model_version, v.value, v.run_id, v.effect, v.written_at
FROM state_values s JOIN state_versions v USING (reach, owner, name, version)
WHERE s.reach = %(reach)s AND s.owner = %(owner)s AND s.name = %(name)s;

-- name: put
SELECT capataz_state_put(%(run_id)s, %(epoch)s, %(worker)s, %(reach)s, %(owner)s, %(name)s, %(expected)s, %(model_version)s,
                         %(value)s::json, %(effect)s, %(written_at)s);

-- name: history
SELECT version, model_version, value, run_id, effect, written_at FROM state_versions
WHERE reach = %(reach)s AND owner = %(owner)s AND name = %(name)s AND version > %(after)s
ORDER BY version LIMIT %(limit)s;
