"""The mitmproxy side: who is calling, what is a model call, early bytes, what may pass, what a person sees."""
