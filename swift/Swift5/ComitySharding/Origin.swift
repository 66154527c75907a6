// Sources of this target: those of swift/Sources/ComitySharding, which the plugin UntypedThrows rewrites.
