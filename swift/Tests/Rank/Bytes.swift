import Comity
import Foundation

extension Checks {
    /// Buffers whose type is known at run time only, and data.
    func bytes() throws {
        let (rank, size) = (group.rank, group.size)
        let total = Float((0..<size).reduce(0, +))
        var values = [Float](repeating: Float(rank), count: 9)
        try values.withUnsafeMutableBytes { try group.allReduce($0, as: .float32) }
        try equal(values, [Float](repeating: total, count: 9), "allReduce of bytes")
        // Elements need no alignment.
        var shifted = [UInt8](repeating: 0, count: 13)
        shifted.withUnsafeMutableBytes { $0.storeBytes(of: Float(rank), toByteOffset: 1, as: Float.self) }
        try shifted.withUnsafeMutableBytes { try group.allReduce(UnsafeMutableRawBufferPointer(rebasing: $0[1..<5]), as: .float32) }
        try equal(shifted.withUnsafeBytes { $0.loadUnaligned(fromByteOffset: 1, as: Float.self) }, total, "allReduce unaligned")
        try values.withUnsafeMutableBytes { bytes in
            bytes[0] = UInt8(rank)
            try group.broadcast(bytes, from: size - 1)
        }
        try equal(values.withUnsafeBytes { $0[0] }, UInt8(size - 1), "broadcast of bytes")

        try between()
        try betweenRoots()
        try inPlace()
        try ofData()
        var data = Data([UInt8(rank), 1, 2, 3])
        try group.allReduce(&data, as: .uint8, .max)
        try equal(data, Data([UInt8(size - 1), 1, 2, 3]), "allReduce of data")
        data = Data([UInt8(rank), 9])
        try group.broadcast(&data, from: 0)
        try equal(data, Data([0, 9]), "broadcast of data")
        if size > 1, rank == 0 {
            try group.send(Data([4, 5, 6]), to: 1)
            try values.withUnsafeBytes { try group.send($0, to: 1) }
        } else if rank == 1 {
            var received = Data(count: 3)
            try group.receive(into: &received, from: 0)
            try equal(received, Data([4, 5, 6]), "receive of data")
            try values.withUnsafeMutableBytes { try group.receive(into: $0, from: 0) }
        }
    }

    /// Operations from one raw buffer into another; the parts of the ranks are as long as `counts` says, or equal.
    private func between() throws {
        let (rank, size) = (group.rank, group.size)
        let counts = (0..<size).map { $0 + 1 }
        let mine = [Int32](repeating: Int32(rank), count: counts[rank])
        let all = [Int32](repeating: 1, count: counts.reduce(0, +))
        let two = [Int32](repeating: Int32(rank), count: 2)
        let of2 = (0..<Int32(size)).flatMap { [$0, $0] }

        let sum = of2.reduce(0, +) / 2
        try equal(try into(2, two) { try group.allReduce($0, into: $1, as: .int32) }, [sum, sum], "allReduce into bytes")
        try equal(try into(2 * size, two) { try group.allGather($0, into: $1, as: .int32) }, of2, "allGather of bytes")
        try equal(
            try into(all.count, mine) { try group.allGather($0, into: $1, as: .int32, counts: counts) },
            counts.flatMap { [Int32](repeating: Int32($0) - 1, count: $0) }, "allGather of bytes with counts")
        try equal(
            try into(2, of2) { try group.reduceScatter($0, into: $1, as: .int32) }, [Int32](repeating: Int32(rank * size), count: 2),
            "reduceScatter of bytes")
        try equal(
            try into(counts[rank], all) { try group.reduceScatter($0, into: $1, as: .int32, .sum, counts: counts) },
            [Int32](repeating: Int32(size), count: counts[rank]), "reduceScatter of bytes with counts")
        let own = [Int32](repeating: Int32(rank), count: 2 * size)
        try equal(try into(2 * size, own) { try group.allToAll($0, into: $1, as: .int32) }, of2, "allToAll of bytes")
        let toEach = counts.flatMap { [Int32](repeating: Int32(rank), count: $0) }
        let fromEach = (0..<Int32(size)).flatMap { [Int32](repeating: $0, count: counts[rank]) }
        let ofEach = [Int](repeating: counts[rank], count: size)
        try equal(
            try into(fromEach.count, toEach) {
                try group.allToAll($0, into: $1, as: .int32, sendCounts: counts, receiveCounts: ofEach)
            }, fromEach, "allToAll of bytes with counts")
        if size > 1, rank == 0 {
            try two.withUnsafeBytes { try group.send($0, as: .int32, to: 1, tag: 5) }
        } else if rank == 1 {
            let received = try into(2, [Int32]()) { try group.receive(into: $1, as: .int32, from: 0, tag: 5) }
            try equal(received, [0, 0], "receive of bytes with a type")
        }
        // Too few bytes for the result, and no whole element: no call is made.
        for count in [1, 7] {
            let error = try failure {
                let made = UnsafeMutableRawBufferPointer.allocate(byteCount: count, alignment: 8)
                defer { made.deallocate() }
                try two.withUnsafeBytes { try group.allReduce($0, into: made, as: .int32) }
            }
            guard case .misuse = error else { throw Failed("a destination of \(count) bytes: \(error)") }
        }
    }

    /// Operations with a root, and between neighbours, from one raw buffer into another.
    private func betweenRoots() throws {
        let (rank, size) = (group.rank, group.size)
        let two = [Int32](repeating: Int32(rank), count: 2)
        let of2 = (0..<Int32(size)).flatMap { [$0, $0] }
        let sum = of2.reduce(0, +) / 2
        for root in 0..<size {
            let isRoot = rank == root
            let reduced = try into(isRoot ? 2 : 0, two) { try group.reduce($0, into: $1, as: .int32, to: root) }
            try equal(reduced, isRoot ? [sum, sum] : [], "reduce of bytes")
            let gathered = try into(isRoot ? 2 * size : 0, two) { try group.gather($0, into: $1, as: .int32, to: root) }
            try equal(gathered, isRoot ? of2 : [], "gather of bytes")
            let scattered = try into(2, isRoot ? of2 : []) { try group.scatter($0, into: $1, as: .int32, from: root) }
            try equal(scattered, two, "scatter of bytes")
        }
        guard size > 1 else { return }
        let (left, right) = ((rank + size - 1) % size, (rank + 1) % size)
        let fromLeft = try into(2, two) { try group.exchange($0, to: right, into: $1, from: left, as: .int32, tag: 4) }
        try equal(fromLeft, [Int32(left), Int32(left)], "exchange of bytes")
    }

    /// Operations in one raw buffer.
    private func inPlace() throws {
        let (rank, size) = (group.rank, group.size)
        let sum = Int32((0..<size).reduce(0, +))
        let all = (0..<Int32(size)).map { $0 }
        func result(_ values: [Int32], _ call: (UnsafeMutableRawBufferPointer) throws -> Void) throws -> [Int32] {
            var values = values
            try values.withUnsafeMutableBytes(call)
            return values
        }
        let own = [Int32](repeating: Int32(rank), count: size)
        let reduced = try result(own) { try group.reduce($0, as: .int32, to: size - 1) }
        try equal(reduced, rank == size - 1 ? [Int32](repeating: sum, count: size) : own, "reduce of bytes in place")
        var part = own
        part[rank] = sum
        try equal(try result(own) { try group.reduceScatter($0, as: .int32) }, part, "reduceScatter of bytes in place")
        var mine = [Int32](repeating: -1, count: size)
        mine[rank] = Int32(rank)
        try equal(try result(mine) { try group.allGather($0, as: .int32) }, all, "allGather of bytes in place")
        try equal(try result(own) { try group.allToAll($0, as: .int32) }, all, "allToAll of bytes in place")
    }

    /// Every operation on data.
    private func ofData() throws {
        let (rank, size) = (group.rank, group.size)
        let own = Data(repeating: UInt8(rank), count: size)
        let all = Data((0..<UInt8(size)).map { $0 })
        let sum = all.reduce(0, +)
        for root in 0..<size {
            let isRoot = rank == root
            var reduced = own
            try group.reduce(&reduced, as: .uint8, to: root)
            try equal(reduced, isRoot ? Data(repeating: sum, count: size) : own, "reduce of data")
            try equal(try group.gather(own.prefix(1), to: root), isRoot ? all : nil, "gather of data")
            try equal(try group.scatter(isRoot ? all : Data(), count: 1, from: root), own.prefix(1), "scatter of data")
        }
        var part = own
        part[rank] = sum
        var scattered = own
        try group.reduceScatter(&scattered, as: .uint8)
        try equal(scattered, part, "reduceScatter of data in place")
        try equal(try group.reduceScatter(own, as: .uint8), Data([sum]), "reduceScatter of data")
        var gathered = Data(count: size)
        gathered[rank] = UInt8(rank)
        try group.allGather(&gathered)
        try equal(gathered, all, "allGather of data in place")
        try equal(try group.allGather(own.prefix(1)), all, "allGather of data")
        var turned = own
        try group.allToAll(&turned)
        try equal(turned, all, "allToAll of data in place")
        // Rank r has r + 1 bytes.
        let counts = (0..<size).map { $0 + 1 }
        let mine = Data(repeating: UInt8(rank), count: counts[rank])
        let joined = Data((0..<UInt8(size)).flatMap { [UInt8](repeating: $0, count: Int($0) + 1) })
        try equal(try group.allGather(mine, counts: counts), joined, "allGather of data with counts")
        let ones = Data(repeating: 1, count: joined.count)
        try equal(
            try group.reduceScatter(ones, as: .uint8, counts: counts), Data(repeating: UInt8(size), count: counts[rank]),
            "reduceScatter of data with counts")
        try equal(
            try group.allToAll(
                Data(repeating: UInt8(rank), count: joined.count), sendCounts: counts,
                receiveCounts: [Int](repeating: counts[rank], count: size)),
            Data((0..<UInt8(size)).flatMap { [UInt8](repeating: $0, count: counts[rank]) }), "allToAll of data with counts")
        guard size > 1 else { return }
        let (left, right) = ((rank + size - 1) % size, (rank + 1) % size)
        let fromLeft = try group.exchange(mine, to: right, receiving: counts[left], from: left)
        try equal(fromLeft, Data(repeating: UInt8(left), count: counts[left]), "exchange of data")
    }

    /// Result of a call over two raw buffers.
    private func into(
        _ count: Int, _ values: [Int32], _ call: (UnsafeRawBufferPointer, UnsafeMutableRawBufferPointer) throws -> Void
    ) throws -> [Int32] {
        var made = [Int32](repeating: -1, count: count)
        try values.withUnsafeBytes { source in try made.withUnsafeMutableBytes { try call(source, $0) } }
        return made
    }
}
