"""stub"""
def main() -> int:
    import sys
    import argparse
    from .settings import add_serve_flags
    p=argparse.ArgumentParser(); s=p.add_subparsers(dest="c"); add_serve_flags(s.add_parser("serve"))
    a=p.parse_args(); import scrubjay_server; return scrubjay_server.serve(a)
