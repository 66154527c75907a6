// Ranks say who they are, and add up their numbers:
//
//     swift build --product hello
//     comity launch -n 4 -- .build/debug/hello

import Comity

let group = try Group()
let sum = try group.allReduce([Float(group.rank)])
print("rank \(group.rank) of \(group.size): the sum is \(sum[0])")
try group.close()
