"""What the files say: one struct a section, each key declared once (base/declared.py).

headgate.toml ──agent.load_settings──► Settings ──► main.py hands values (never this) to objects
proxy.toml    ──proxy.load_proxy_settings──► ProxySettings ──► proxymain.py
"""
