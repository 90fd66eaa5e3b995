"""The page for people.   Control ──► PageSite ──► a page's handlers ──► PageApi ──► the API

Everything that it shows or does goes through the same routes as the command line and curl: judged,
audited, and by the same roles. What is shown is made here, as HTML; a script makes it live.
"""
