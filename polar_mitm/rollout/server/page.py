"""The API's page: what `/openapi.json` says, as one HTML page without scripts and without anything from elsewhere."""

from typing import Any

from jinja2 import Environment

TEMPLATE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>polar rollout API</title>
<style>
 body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24;
        background: #fff }
 code, pre { font: 13px/1.45 ui-monospace, monospace } pre { background: #f4f5f7; padding: .6rem; overflow-x: auto }
 details { border-top: 1px solid #d8dce2; padding: .35rem 0 } summary { cursor: pointer }
 .method { display: inline-block; min-width: 4.2rem; font-weight: 600 }
 td { vertical-align: top; padding: 0 1rem .3rem 0 }
 h2 { margin-top: 2rem } .what { color: #57606a }
 @media (prefers-color-scheme: dark) { body { background: #16191d; color: #dde1e6 } pre { background: #21262c }
  details { border-color: #363c44 } .what { color: #98a1ab } }
</style></head><body>
<h1>polar rollout API</h1>
<p>Version {{ version }}. The same for programs: <a href="openapi.json">openapi.json</a>. Every path but
<code>/healthz</code> needs the token: <code>Authorization: Bearer &lt;token&gt;</code>.</p>
{% for tag, operations in groups %}
<h2>{{ tag }}</h2>
{% for method, path, operation in operations %}
<details><summary><span class="method">{{ method }}</span><code>{{ path }}</code>
<span class="what">{{ operation.description or operation.summary }}</span></summary>
{% if operation.parameters %}<table>{% for p in operation.parameters %}
<tr><td><code>{{ p.name }}</code></td><td>{{ p["in"] }}{{ ", required" if p.required }}</td>
<td>{{ p.description }}</td></tr>{% endfor %}</table>{% endif %}
{% for kind, name in operation.bodies %}<p>{{ kind }}: <a href="#{{ name }}"><code>{{ name }}</code></a></p>{% endfor %}
</details>{% endfor %}{% endfor %}
<h2>Models</h2>
{% for name, schema in schemas %}
<details id="{{ name }}"><summary><code>{{ name }}</code> <span class="what">{{ schema.description }}</span></summary>
<pre>{{ schema | tojson(indent=2) }}</pre></details>{% endfor %}
</body></html>
""")


def api_page(document: dict[str, Any], version: str) -> str:
    groups: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            shown = operation | {"bodies": _bodies(operation)}
            groups.setdefault(operation["tags"][0], []).append((method.upper(), path, shown))
    schemas = sorted(document["components"]["schemas"].items())
    return TEMPLATE.render(groups=groups.items(), schemas=schemas, version=version)


def _bodies(operation: dict[str, Any]) -> list[tuple[str, str]]:
    """What goes in and what comes out, by the names of their models."""
    parts = [("body", operation.get("requestBody", {}))]
    parts += [(f"{status}", reply) for status, reply in operation["responses"].items()]
    found = []
    for kind, part in parts:
        schema = part.get("content", {}).get("application/json", {}).get("schema", {})
        if reference := schema.get("$ref") or schema.get("items", {}).get("$ref"):
            found.append((kind, reference.rpartition("/")[2]))
    return found
