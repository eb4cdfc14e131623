package frame

// Limits bound what a frame may contain; sizes are in bytes. The zero value of a field means its default.
type Limits struct {
	EncodedBytes int // whole frame, 4 MiB
	// DecodedBytes bounds the decoded payload, and separately the memory of the
	// label, series and string tables that are built from it: 64 MiB.
	DecodedBytes    int
	Records         int // 1,000,000
	SeriesLabels    int // including resource labels, 64
	LabelNameBytes  int // 256
	LabelValueBytes int // 2 KiB
	HelpBytes       int // of a metric's help, 2 KiB
	// Ratio bounds decoded to encoded payload bytes: 100. Applies above 64 KiB decoded.
	Ratio int
}

// ratioFloor is the decoded size, in bytes, up to which the ratio is not checked: a frame
// of any size may use that much memory.
const ratioFloor = 64 << 10

// DefaultLimits are the limits that the zero value stands for.
func DefaultLimits() Limits {
	return Limits{
		EncodedBytes:    4 << 20,
		DecodedBytes:    64 << 20,
		Records:         1_000_000,
		SeriesLabels:    64,
		LabelNameBytes:  256,
		LabelValueBytes: 2 << 10,
		HelpBytes:       2 << 10,
		Ratio:           100,
	}
}

func (l Limits) orDefault() Limits {
	d := DefaultLimits()
	set := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&l.EncodedBytes, d.EncodedBytes)
	set(&l.DecodedBytes, d.DecodedBytes)
	set(&l.Records, d.Records)
	set(&l.SeriesLabels, d.SeriesLabels)
	set(&l.LabelNameBytes, d.LabelNameBytes)
	set(&l.LabelValueBytes, d.LabelValueBytes)
	set(&l.HelpBytes, d.HelpBytes)
	set(&l.Ratio, d.Ratio)
	return l
}

// ratioTooHigh reports whether the decoded size is too large for the encoded one.
func (l Limits) ratioTooHigh(encoded, decoded uint64) bool {
	return decoded > ratioFloor && decoded > encoded*uint64(l.Ratio)
}
