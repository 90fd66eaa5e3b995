{# SQLCommenter tags for query-comment. dbt puts the /* and */ about them. No invocation or run id:
   one text for each model, so that pg_stat_statements and plan caches keep one of each. #}
{% macro headgate_tags(node) -%}
  {%- set app = env_var("HEADGATE_APP", "dbt") | urlencode | replace("/", "%2F") -%}
  app='{{ app }}'{% if node is not none %},controller='{{ node.name | urlencode }}'{% endif %},framework='dbt'
{%- endmacro %}
