import Comity
import MLX

/// Operations on arrays. Each computes its array, communicates, and then returns, so that an error belongs to its line.
///
/// Gradients follow MLX's convention: the computation after a call is the same on every rank. Where ranks go on with different parts,
/// ``sumGradients(group:)`` in front of them adds the gradients up.
extension Group {
    /// Sum of the arrays of all ranks. Its gradient passes unchanged.
    ///
    /// - Parameters:
    ///   - x: An array of the same shape and type on every rank.
    ///   - stream: Where the array is computed.
    public func allSum(_ x: MLXArray, stream: StreamOrDevice = .default) throws(ComityError) -> MLXArray {
        guard size > 1 else { return x }
        return x.replaced(by: try combined(x, .sum, stream)) { $0 }
    }

    /// Largest elements of all ranks. The gradient goes to the ranks that have them, in equal parts.
    public func allMax(_ x: MLXArray, stream: StreamOrDevice = .default) throws(ComityError) -> MLXArray {
        try extreme(x, .max, stream)
    }

    /// Smallest elements of all ranks. The gradient goes to the ranks that have them, in equal parts.
    public func allMin(_ x: MLXArray, stream: StreamOrDevice = .default) throws(ComityError) -> MLXArray {
        try extreme(x, .min, stream)
    }

    /// Arrays of all ranks, joined by rank along the first axis. Numbers become a vector.
    ///
    /// - Parameters:
    ///   - x: An array of the same type on every rank, and of the same shape but for its rows.
    ///   - rows: Rows that each rank gives; `nil`: as many on every rank.
    ///   - stream: Where the array is computed.
    public func allGather(
        _ x: MLXArray, rows: [Int]? = nil, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        let shape = x.ndim == 0 ? [1] : x.shape
        if let rows { try check(rows, x.ndim == 0 ? 1 : x.dim(0)) }
        guard size > 1 else { return x.ndim == 0 ? x.reshaped([1]) : x }
        let counts = rows ?? Array(repeating: shape[0], count: size)
        let made = try gathered(x, counts, stream)
        let start = counts[..<rank].reduce(0, +)
        let own = start..<start + shape[0]
        return x.replaced(by: made) { $0.slice(own, axis: 0).reshaped(x.shape) }
    }

    /// This rank's rows of the sum over all ranks. Their gradients are gathered.
    ///
    /// - Parameters:
    ///   - x: An array of the same shape and type on every rank. The number of its rows is a multiple of that of the ranks.
    ///   - stream: Where the array is computed.
    public func sumScatter(_ x: MLXArray, stream: StreamOrDevice = .default) throws(ComityError) -> MLXArray {
        try reduceScatter(x, .sum, stream: stream)
    }

    /// This rank's rows of the arrays of all ranks, combined. The gradients of a sum and of an average are gathered; other reductions have
    /// none.
    ///
    /// - Parameters:
    ///   - x: An array of the same shape and type on every rank.
    ///   - reduction: How elements are combined.
    ///   - rows: Rows that each rank gets; `nil`: as many for each.
    ///   - stream: Where the array is computed.
    public func reduceScatter(
        _ x: MLXArray, _ reduction: Reduction = .sum, rows: [Int]? = nil, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        let counts = try parts(x, rows)
        guard size > 1 else { return x }
        let made = try scattered(x, reduction, counts, stream)
        let (group, shape) = (self, x.shape)
        return x.replaced(by: made) { cotangent in
            Failure.reported(shape, cotangent.dtype) {
                guard reduction == .sum || reduction == .average else {
                    throw ComityError.misuse(.init(message: "reduceScatter with \(reduction) has no gradient"))
                }
                let whole = try group.gathered(cotangent, counts, stream)
                return reduction == .average ? whole / group.size : whole
            }
        }
    }

    /// Part r of the array along its first axis to rank r, and a part from each rank. The gradients go the other way.
    ///
    /// - Parameters:
    ///   - x: An array of the same type on every rank, and of the same shape but for its rows.
    ///   - sendRows: Rows that go to each rank; `nil`: as many to each.
    ///   - receiveRows: Rows that come from each rank; `nil`: as many from each.
    ///   - stream: Where the array is computed.
    public func allToAll(
        _ x: MLXArray, sendRows: [Int]? = nil, receiveRows: [Int]? = nil, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        let sent = try parts(x, sendRows)
        let received = receiveRows ?? sent
        guard received.count == size else {
            throw .misuse(.init(message: "receiveRows has \(received.count) numbers, and must have one for each of the \(size) ranks"))
        }
        let made = try exchanged(x, sent, received, stream)
        let (group, shape) = (self, x.shape)
        return x.replaced(by: made) { cotangent in
            Failure.reported(shape, cotangent.dtype) { try group.exchanged(cotangent, received, sent, stream) }
        }
    }

    /// The root's array on every rank. Only the root's has a gradient.
    ///
    /// - Parameters:
    ///   - x: An array of the same shape and type on every rank.
    ///   - root: The rank whose array all get.
    ///   - stream: Where the array is computed.
    public func broadcast(
        _ x: MLXArray, from root: Int, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        let isRoot = rank == root
        // The content of the others' arrays does not matter.
        let made =
            if isRoot {
                try x.withElements(stream) { bytes throws(ComityError) in
                    try MLXArray.made(x.shape, x.dtype) { result throws(ComityError) in
                        result.copyMemory(from: bytes)
                        try broadcast(result, as: x.dtype.elementType, from: root)
                    }
                }
            } else {
                try MLXArray.made(x.shape, x.dtype) { result throws(ComityError) in
                    try broadcast(result, as: x.dtype.elementType, from: root)
                }
            }
        return x.replaced(by: made) { isRoot ? $0 : MLXArray.zeros(like: $0) }
    }

    /// Send an array to a rank, which receives it with the same shape and type. It is sent now, whether or not the result is used.
    ///
    /// - Returns: The array.
    @discardableResult
    public func send(
        _ x: MLXArray, to destination: Int, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        try x.withElements(stream) { bytes throws(ComityError) in
            try send(bytes, as: x.dtype.elementType, to: destination)
        }
        return x
    }

    /// Receive an array from a rank.
    ///
    /// - Parameters:
    ///   - shape: The sender's.
    ///   - dtype: The sender's.
    ///   - source: The rank that sends.
    ///   - stream: For the sake of MLX's signature.
    public func recv(
        _ shape: [Int], dtype: DType, from source: Int, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        try MLXArray.made(shape, dtype) { result throws(ComityError) in
            try receive(into: result, as: dtype.elementType, from: source)
        }
    }

    /// Receive an array of the shape and type of another one from a rank. The other's content does not matter.
    public func recvLike(
        _ x: MLXArray, from source: Int, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        try recv(x.shape, dtype: x.dtype, from: source, stream: stream)
    }
}

/// Operations without gradients.
extension Group {
    /// Elements of all ranks, combined.
    func combined(_ x: MLXArray, _ reduction: Reduction, _ stream: StreamOrDevice) throws(ComityError) -> MLXArray {
        try x.withElements(stream) { bytes throws(ComityError) in
            try MLXArray.made(x.shape, x.dtype) { result throws(ComityError) in
                try allReduce(bytes, into: result, as: x.dtype.elementType, reduction)
            }
        }
    }

    /// Rows of all ranks, which give so many.
    func gathered(_ x: MLXArray, _ rows: [Int], _ stream: StreamOrDevice) throws(ComityError) -> MLXArray {
        let (shape, row) = ([rows.reduce(0, +)] + x.shape.dropFirst(), x.rowSize)
        return try x.withElements(stream) { bytes throws(ComityError) in
            try MLXArray.made(shape, x.dtype) { result throws(ComityError) in
                try allGather(bytes, into: result, as: x.dtype.elementType, counts: rows.map { $0 * row })
            }
        }
    }

    /// This rank's rows of the combined elements; ranks get so many.
    func scattered(
        _ x: MLXArray, _ reduction: Reduction, _ rows: [Int], _ stream: StreamOrDevice
    ) throws(ComityError) -> MLXArray {
        let (shape, row) = ([rows[rank]] + x.shape.dropFirst(), x.rowSize)
        return try x.withElements(stream) { bytes throws(ComityError) in
            try MLXArray.made(shape, x.dtype) { result throws(ComityError) in
                try reduceScatter(bytes, into: result, as: x.dtype.elementType, reduction, counts: rows.map { $0 * row })
            }
        }
    }

    private func exchanged(
        _ x: MLXArray, _ sent: [Int], _ received: [Int], _ stream: StreamOrDevice
    ) throws(ComityError) -> MLXArray {
        let (shape, row) = ([received.reduce(0, +)] + x.shape.dropFirst(), x.rowSize)
        return try x.withElements(stream) { bytes throws(ComityError) in
            try MLXArray.made(shape, x.dtype) { result throws(ComityError) in
                try allToAll(
                    bytes, into: result, as: x.dtype.elementType, sendCounts: sent.map { $0 * row },
                    receiveCounts: received.map { $0 * row })
            }
        }
    }

    private func extreme(_ x: MLXArray, _ reduction: Reduction, _ stream: StreamOrDevice) throws(ComityError) -> MLXArray {
        guard size > 1 else { return x }
        let made = try combined(x, reduction, stream)
        let group = self
        return x.replaced(by: made) { cotangent in
            Failure.reported(x.shape, cotangent.dtype) {
                let mine = (x .== made).asType(.float32)
                return (cotangent * mine / (try group.combined(mine, .sum, stream))).asType(cotangent.dtype)
            }
        }
    }

    /// Rows of the array that belong to each rank.
    private func parts(_ x: MLXArray, _ rows: [Int]?) throws(ComityError) -> [Int] {
        guard x.ndim > 0 else { throw .misuse(.init(message: "a number has no first axis that ranks could share")) }
        if let rows {
            try check(rows, nil)
            guard rows.reduce(0, +) == x.dim(0) else {
                throw .misuse(.init(message: "the array has \(x.dim(0)) rows, and \(rows) are \(rows.reduce(0, +))"))
            }
            return rows
        }
        guard x.dim(0) % size == 0 else {
            throw .misuse(.init(message: "\(x.dim(0)) rows cannot be cut into \(size) equal parts; give the number of each rank's rows"))
        }
        return Array(repeating: x.dim(0) / size, count: size)
    }

    private func check(_ rows: [Int], _ own: Int?) throws(ComityError) {
        guard rows.count == size, rows.allSatisfy({ (0...Int(Int32.max)).contains($0) }) else {
            throw .misuse(.init(message: "\(rows) must have a number of rows for each of the \(size) ranks"))
        }
        if let own, rows[rank] != own {
            throw .misuse(.init(message: "rank \(rank) has \(own) rows, and must have \(rows[rank])"))
        }
    }
}

extension MLXArray {
    /// Elements of a row.
    var rowSize: Int { Array(shape.dropFirst()).product }

    /// Another array as a function of this one, with the function that makes this one's gradient of the other's.
    func replaced(by made: MLXArray, gradient: @escaping (MLXArray) -> MLXArray) -> MLXArray {
        CustomFunction {
            Forward { _ in [made] }
            VJP { _, cotangents in [gradient(cotangents[0])] }
        }([self])[0]
    }
}
