// One import, as with mlx-swift's own port: groups, errors, and the arithmetic of sharding.
@_exported import Comity
@_exported import ComitySharding
