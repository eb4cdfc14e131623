package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
)

const (
	markName  = "ACKED"
	markMagic = "LMACKED1"
	markSize  = 40
)

// mark is the file ACKED: it says how far the log was acknowledged. It is written after a
// batch's fsync and before its answers, without an fsync of its own, so it survives a killed
// process but not always a power loss. It is the only thing that tells a damaged last batch,
// which was acknowledged, from a torn one, which was not. The committer syncs it when the store
// is idle, so that a power loss seldom takes it back.
type mark struct {
	pos     position // the durable end of the log
	salt    uint32   // of that segment
	nextSeq uint64
}

func (m mark) encode() []byte {
	b := append(make([]byte, 0, markSize), markMagic...)
	b = binary.LittleEndian.AppendUint64(b, m.pos.seg)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.pos.off))
	b = binary.LittleEndian.AppendUint64(b, m.nextSeq)
	b = binary.LittleEndian.AppendUint32(b, m.salt)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeMark gives the zero mark for a file that holds no valid one. That is safe: nothing is
// then known to be acknowledged, and a torn tail is cut off as usual.
func decodeMark(b []byte) (m mark) {
	if len(b) != markSize || string(b[:8]) != markMagic || crc32.Checksum(b[:36], castagnoli) != binary.LittleEndian.Uint32(b[36:]) {
		return m
	}
	m.pos = position{binary.LittleEndian.Uint64(b[8:]), int64(binary.LittleEndian.Uint64(b[16:]))}
	m.nextSeq, m.salt = binary.LittleEndian.Uint64(b[24:]), binary.LittleEndian.Uint32(b[32:])
	return m
}

func (e *Engine) openMark() error {
	f, err := e.fs.Open(markName)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = e.fs.Create(markName)
	}
	if err != nil {
		return fmt.Errorf("open the mark of what was acknowledged: %w", err)
	}
	e.mark.file = f
	b := make([]byte, markSize)
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		e.opt.Log.Warn("the mark of what was acknowledged cannot be read", "error", err)
		return nil
	}
	e.mark.was = decodeMark(b)
	return nil
}

// writeMark records that everything up to the head is about to be acknowledged. A failure is
// logged once and tolerated: the records themselves are durable.
func (e *Engine) writeMark() {
	m := mark{e.head.pos, e.head.salt, e.head.nextSeq}
	if _, err := e.mark.file.WriteAt(m.encode(), 0); err != nil {
		if !e.mark.warned {
			e.opt.Log.Warn("the mark of what was acknowledged cannot be written", "error", err)
		}
		e.mark.warned = true
		return
	}
	e.mark.warned, e.mark.unsynced = false, true
}

// syncMark makes the mark durable. It is called when no writer waits for the disk.
func (e *Engine) syncMark() {
	if e.mark.unsynced {
		e.mark.unsynced = false
		if err := e.mark.file.Sync(); err != nil {
			e.opt.Log.Warn("fsync of the mark of what was acknowledged", "error", err)
		}
	}
}

// ackedUpTo is the offset up to which a segment is known to have been acknowledged; 0 when the
// mark is of another segment.
func (e *Engine) ackedUpTo(s *segment) int64 {
	m := e.mark.was
	if m.pos.seg == s.number && m.salt == s.salt {
		return m.pos.off
	}
	return 0
}
