"""What the files say: one struct a section, each key declared once (base/declared.py).

headgate.toml ──agent.load_settings──► Settings ──► assemble.py hands values to objects
proxy.toml    ──proxy.load_proxy_settings──► ProxySettings ──► proxy/assemble.py
"""
