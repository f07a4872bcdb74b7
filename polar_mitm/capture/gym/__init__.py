"""NeMo Gym's token capture, kept in polar's own sessions.

`store` is its sink and its source, `lineage` tells which captured call a request continues, `entries` turns a call into
Gym's entry and back. Only what Gym's own process loads imports Gym. In its configuration:

    token_id_capture:
      enabled: true
      sink: polar_mitm.capture.gym.store:Store
      sink_kwargs: {folder: runs}
      lineage_store: polar_mitm.capture.gym.lineage:Lineage
      lineage_store_kwargs: {folder: runs}
"""
