"""The model server's side: the client to vLLM's OpenAI server, and the local vLLM that polar installs and starts.

What a harness's API looks like belongs to `providers`; what is written down belongs to `capture`.
"""
