import Comity

/// Element that the checks make of a small number, and read again.
protocol Checked: CollectiveElement, Equatable {
    init(small: Int)
}

extension Checked where Self: BinaryInteger {
    init(small: Int) { self.init(small) }
}

extension Checked where Self: BinaryFloatingPoint {
    init(small: Int) { self.init(small) }
}

extension UInt8: Checked {}
extension UInt16: Checked {}
extension UInt32: Checked {}
extension UInt64: Checked {}
extension UInt: Checked {}
extension Int8: Checked {}
extension Int16: Checked {}
extension Int32: Checked {}
extension Int64: Checked {}
extension Int: Checked {}
extension Float: Checked {}
extension Double: Checked {}
#if !((os(macOS) || targetEnvironment(macCatalyst)) && arch(x86_64))
    extension Float16: Checked {}
#endif

extension BFloat16: Checked {
    init(small: Int) { self.init(Float(small)) }
}

extension Complex64: Checked {
    init(small: Int) { self.init(Float(small)) }
}

extension Bool: Checked {
    init(small: Int) { self = small != 0 }
}

/// Every operation in every form, on every type; the number of checks.
func conformance(_ group: Group) throws -> Int {
    let checks = Checks(group: group)
    try checks.all(Bool.self, [0, 1])
    try checks.all(UInt8.self)
    try checks.all(UInt16.self)
    try checks.all(UInt32.self)
    try checks.all(UInt64.self)
    try checks.all(UInt.self)
    try checks.all(Int8.self)
    try checks.all(Int16.self)
    try checks.all(Int32.self)
    try checks.all(Int64.self)
    try checks.all(Int.self)
    #if !((os(macOS) || targetEnvironment(macCatalyst)) && arch(x86_64))
        try checks.all(Float16.self)
    #endif
    try checks.all(BFloat16.self)
    try checks.all(Float.self)
    try checks.all(Double.self)
    try checks.all(Complex64.self)
    try checks.bytes()
    return checks.count
}

final class Checks {
    let group: Group
    var count = 0

    init(group: Group) {
        self.group = group
    }

    /// Small number at a place of a rank's buffer.
    private func number(_ rank: Int, _ i: Int, _ range: ClosedRange<Int>) -> Int {
        range.lowerBound + (rank + i) % range.count
    }

    private func values<T: Checked>(_ rank: Int, _ n: Int, _ range: ClosedRange<Int>) -> [T] {
        (0..<n).map { T(small: number(rank, $0, range)) }
    }

    func equal<T: Equatable>(_ a: T, _ b: T, _ what: String) throws {
        count += 1
        if a != b {
            throw Failed("\(what) on rank \(group.rank) of \(group.size): \(a), and not \(b)")
        }
    }

    func all<T: Checked>(_ type: T.Type, _ numbers: [Int] = [1, 2, 3]) throws {
        let range = numbers[0]...numbers[numbers.count - 1]
        for n in T.self == Float.self ? [0, 37, 40_000] : [0, 37] {
            try reduce(type, .max, n, range)
            try move(type, n, range)
        }
        for reduction in Reduction.allCases where T.elementType.supports(reduction) {
            let (mine, wanted): ([T], [T]) = operands(reduction, 9, range)
            try equal(try group.allReduce(mine, reduction), wanted, "\(reduction) of \(T.elementType)")
        }
        try uneven(type, range)
        for unsupported in Reduction.allCases where !T.elementType.supports(unsupported) {
            let error = try failure { _ = try group.allReduce([T(small: 1)], unsupported) }
            guard case .misuse = error, !error.isFatal else { throw Failed("\(unsupported) of \(T.elementType): \(error)") }
            count += 1
        }
    }

    /// Result of a reduction at a place.
    private func combined<T: Checked>(_ reduction: Reduction, _ i: Int, _ range: ClosedRange<Int>) -> T {
        let all = (0..<group.size).map { number($0, i, range) }
        let isBool = T.self == Bool.self
        switch reduction {
        case .sum: return T(small: all.reduce(0, +))
        case .product: return T(small: all.reduce(1, *))
        case .min: return T(small: all.reduce(range.upperBound, Swift.min))
        case .max: return T(small: all.reduce(range.lowerBound, Swift.max))
        case .average: return T(small: 0)  // Its numbers are others: see `operands`.
        case .bitwiseAnd: return T(small: all.reduce(isBool ? 1 : -1, &))
        case .bitwiseOr: return T(small: all.reduce(0, |))
        case .bitwiseXor: return T(small: all.reduce(0, ^))
        }
    }

    /// This rank's elements for a reduction, and the result.
    private func operands<T: Checked>(_ reduction: Reduction, _ n: Int, _ range: ClosedRange<Int>) -> ([T], [T]) {
        guard reduction == .average else {
            return (values(group.rank, n, range), (0..<n).map { combined(reduction, $0, range) })
        }
        // So that the average is a whole number: all ranks give i, and rank 0 as much more as there are ranks.
        let more = group.rank == 0 ? group.size : 0
        return ((0..<n).map { T(small: $0 % 7 + more) }, (0..<n).map { T(small: $0 % 7 + 1) })
    }

    private func reduce<T: Checked>(
        _ type: T.Type, _ reduction: Reduction, _ n: Int, _ range: ClosedRange<Int>
    ) throws {
        let (rank, size) = (group.rank, group.size)
        let what = "\(reduction) of \(n) \(T.elementType)"
        let (mine, wanted): ([T], [T]) = operands(reduction, n, range)

        try equal(try group.allReduce(mine, reduction), wanted, "allReduce, \(what)")
        var inPlace = mine
        try group.allReduce(&inPlace, reduction)
        try equal(inPlace, wanted, "allReduce in place, \(what)")
        try equal(try group.startAllReduce(mine, reduction).wait(), wanted, "startAllReduce, \(what)")
        let root = size - 1
        try equal(try group.reduce(mine, reduction, to: root), rank == root ? wanted : nil, "reduce, \(what)")
        var atRoot = mine
        try group.reduce(&atRoot, reduction, to: root)
        try equal(atRoot, rank == root ? wanted : mine, "reduce in place, \(what)")
        guard n > 0 else { return }
        var one = mine[0]
        try group.allReduce(&one, reduction)
        try equal(one, wanted[0], "allReduce of one, \(what)")
        try equal(try into(n, mine) { try group.allReduce($0, into: $1, reduction) }, wanted, "allReduce into, \(what)")
        // Each rank gets the part that all have of its number; here every part is the same.
        let parts = Array(repeatElement(mine, count: size).joined())
        try equal(try group.reduceScatter(parts, reduction), wanted, "reduceScatter, \(what)")
        var reduced = parts
        try group.reduceScatter(&reduced, reduction)
        var wantedParts = parts
        wantedParts.replaceSubrange(rank * n..<(rank + 1) * n, with: wanted)
        try equal(reduced, wantedParts, "reduceScatter in place, \(what)")
        var inBuffer = mine
        try inBuffer.withUnsafeMutableBufferPointer { try group.reduce($0, reduction, to: root) }
        try equal(inBuffer, rank == root ? wanted : mine, "reduce in a buffer, \(what)")
        inBuffer = parts
        try inBuffer.withUnsafeMutableBufferPointer { try group.reduceScatter($0, reduction) }
        try equal(inBuffer, wantedParts, "reduceScatter in a buffer, \(what)")
        let counts = (0..<size).map { $0 == 0 ? n * 2 : $0 == 1 ? 0 : n }
        let uneven = Array(repeatElement(mine, count: size == 1 ? 2 : size).joined())
        let part = rank == 0 ? wanted + wanted : rank == 1 ? [] : wanted
        try equal(try group.reduceScatter(uneven, reduction, counts: counts), part, "reduceScatter with counts, \(what)")
        let partInto = try into(part.count, uneven) { try group.reduceScatter($0, into: $1, reduction, counts: counts) }
        try equal(partInto, part, "reduceScatter into, with counts, \(what)")
    }

    private func move<T: Checked>(_ type: T.Type, _ n: Int, _ range: ClosedRange<Int>) throws {
        let (rank, size) = (group.rank, group.size)
        let what = "of \(n) \(T.elementType)"
        let mine: [T] = values(rank, n, range)
        let each: [[T]] = (0..<size).map { values($0, n, range) }
        let joined = Array(each.joined())
        for root in 0..<size {
            var copy = mine
            try group.broadcast(&copy, from: root)
            try equal(copy, each[root], "broadcast \(what)")
            try equal(try group.gather(mine, to: root), rank == root ? joined : nil, "gather \(what)")
            let part = try group.scatter(rank == root ? joined : [], count: n, from: root)
            try equal(part, mine, "scatter \(what)")
        }
        try equal(try group.startBroadcast(mine, from: 0).wait(), each[0], "startBroadcast \(what)")
        try equal(try group.allGather(mine), joined, "allGather \(what)")
        var gathered = [T](repeating: T(small: 0), count: n * size)
        gathered.replaceSubrange(rank * n..<(rank + 1) * n, with: mine)
        var inBuffer = gathered
        try group.allGather(&gathered)
        try equal(gathered, joined, "allGather in place \(what)")
        try inBuffer.withUnsafeMutableBufferPointer { try group.allGather($0) }
        try equal(inBuffer, joined, "allGather in a buffer \(what)")
        // Part r of rank s is what s has, turned by r: so each part is another.
        func turned(_ from: Int, _ to: Int) -> [T] { values(from + 5 * to, n, range) }
        let out = Array((0..<size).map { turned(rank, $0) }.joined())
        let wanted = Array((0..<size).map { turned($0, rank) }.joined())
        try equal(try group.allToAll(out), wanted, "allToAll \(what)")
        var inPlace = out
        try group.allToAll(&inPlace)
        try equal(inPlace, wanted, "allToAll in place \(what)")
        inPlace = out
        try inPlace.withUnsafeMutableBufferPointer { try group.allToAll($0) }
        try equal(inPlace, wanted, "allToAll in a buffer \(what)")
        let (left, right) = ((rank + size - 1) % size, (rank + 1) % size)
        if size > 1 {
            let fromLeft = try group.exchange(mine, to: right, receiving: n, from: left, tag: 7)
            try equal(fromLeft, each[left], "exchange \(what)")
        }
        if size > 1, rank < 2 {
            if rank == 0 {
                try group.send(mine, to: 1, tag: 3)
                try equal(try group.receive(T.self, count: n, from: 1), each[1], "receive \(what)")
            } else {
                var received = mine
                try group.receive(into: &received, from: 0, tag: 3)
                try equal(received, each[0], "receive into \(what)")
                try group.startSend(mine, to: 0).wait()
            }
        }
        try group.barrier()
    }

    private func uneven<T: Checked>(_ type: T.Type, _ range: ClosedRange<Int>) throws {
        let (rank, size) = (group.rank, group.size)
        let counts = (0..<size).map { 3 * $0 }
        let mine: [T] = values(rank, counts[rank], range)
        let joined: [T] = (0..<size).flatMap { values($0, counts[$0], range) }
        try equal(try group.allGather(mine, counts: counts), joined, "allGather with counts of \(T.elementType)")
        let joinedInto = try into(joined.count, mine) { try group.allGather($0, into: $1, counts: counts) }
        try equal(joinedInto, joined, "allGather into, with counts of \(T.elementType)")
        // Rank s gives r + 2 s elements to rank r.
        func number(_ from: Int, _ to: Int) -> Int { to + 2 * from }
        func part(_ from: Int, _ to: Int) -> [T] { values(from + 5 * to, number(from, to), range) }
        let (sent, wanted) = ((0..<size).flatMap { part(rank, $0) }, (0..<size).flatMap { part($0, rank) })
        let (sendCounts, receiveCounts) = ((0..<size).map { number(rank, $0) }, (0..<size).map { number($0, rank) })
        let received = try group.allToAll(sent, sendCounts: sendCounts, receiveCounts: receiveCounts)
        try equal(received, wanted, "allToAll with counts of \(T.elementType)")
        let receivedInto = try into(wanted.count, sent) {
            try group.allToAll($0, into: $1, sendCounts: sendCounts, receiveCounts: receiveCounts)
        }
        try equal(receivedInto, wanted, "allToAll into, with counts of \(T.elementType)")
    }

    /// Result of a call over two buffers.
    private func into<T: Checked>(
        _ count: Int, _ values: [T], _ call: (UnsafeBufferPointer<T>, UnsafeMutableBufferPointer<T>) throws -> Void
    ) throws -> [T] {
        var made = [T](repeating: T(small: 0), count: count)
        try values.withUnsafeBufferPointer { source in try made.withUnsafeMutableBufferPointer { try call(source, $0) } }
        return made
    }
}
