package s3api

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"sync"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/sigv4"
)

// upload is a body that was read and verified. It is in memory (body) or in a file (blob).
type upload struct {
	body []byte
	blob *engine.Blob
	size int64
	etag string
	sum  engine.Checksum
	// crc64 is the default checksum, for a part of an upload that has none; nil: not needed.
	crc64 []byte
	// The memory that is given back.
	buffers *sync.Pool
	buffer  *[]byte
	share   *share
}

// release discards the file that was not handed to the engine, and gives the memory back.
func (u *upload) release() {
	if u.blob != nil {
		u.blob.Discard()
	}
	if u.buffer != nil {
		u.buffers.Put(u.buffer)
		u.share.release()
	}
}

// source is the decoded body of a request, with a deadline for every piece.
type source struct {
	io.Reader
	trailer func() http.Header
	pace    *pacedReader // nil: the bytes come from the store itself
}

func (c *call) source(d *digest) *source {
	pace := c.pace()
	if c.auth.Chunked() {
		ch := c.auth.NewChunks(pace, d.decodedLen, d.trailers)
		return &source{ch, ch.Trailer, pace}
	}
	return &source{pace, func() http.Header { return nil }, pace}
}

// receive reads and verifies a body. One of up to the engine's InlineBytes stays in memory, a larger
// one goes to a file.
func (c *call) receive(d *digest) (*upload, error) {
	return c.receiveWithin(d, c.Engine.InlineBytes())
}

// receiveWithin is receive with the largest body that stays in memory.
func (c *call) receiveWithin(d *digest, inline int64) (*upload, error) {
	u := &upload{size: d.decodedLen}
	src := c.source(d)
	var err error
	if d.decodedLen <= inline {
		err = c.receiveInline(u, d, src)
	} else {
		err = c.receiveFile(u, d, src)
	}
	if err == nil {
		u.etag, u.crc64 = hex.EncodeToString(d.gotMD5[:]), d.gotCRC64
		u.sum, err = d.verify(src.trailer())
	}
	if err != nil {
		u.release()
		return nil, err
	}
	return u, nil
}

func (c *call) receiveInline(u *upload, d *digest, src *source) error {
	// Memory for the whole body is reserved only after its first piece has arrived; see firstPiece.
	buf := c.buffer(int(min(d.decodedLen, firstPiece)))
	have, err := io.ReadFull(src, (*buf)[:min(d.decodedLen, firstPiece)])
	if err != nil {
		return bodyError(err)
	}
	s, err := c.reserve(max(d.decodedLen, 1), src.pace)
	if err != nil {
		return err
	}
	if d.decodedLen > int64(have) {
		first := buf
		buf = c.buffer(int(d.decodedLen))
		copy(*buf, (*first)[:have])
		c.buffers.Put(first)
	}
	u.buffers, u.buffer, u.share = &c.buffers, buf, s
	u.body = (*buf)[:d.decodedLen]
	if _, err := io.ReadFull(src, u.body[have:]); err != nil {
		return bodyError(err)
	}
	if err := atEnd(src); err != nil {
		return err
	}
	d.whole(u.body)
	return nil
}

func (c *call) receiveFile(u *upload, d *digest, src *source) error {
	s, err := c.reserve(engine.BlockSize, src.pace)
	if err != nil {
		return err
	}
	buf := c.buffer(128 << 10)
	u.buffers, u.buffer, u.share = &c.buffers, buf, s
	if u.blob, err = c.Engine.NewBlob(c.bucket, c.key); err != nil {
		return err
	}
	d.begin()
	for left := d.decodedLen; left > 0; {
		p := (*buf)[:min(left, int64(len(*buf)))]
		n, err := src.Read(p)
		d.write(p[:n])
		if _, werr := u.blob.Write(p[:n]); werr != nil {
			return werr
		}
		left -= int64(n)
		if err != nil && left > 0 {
			return bodyError(err)
		}
	}
	d.end()
	return atEnd(src)
}

// atEnd checks that nothing follows. For a chunked body this reads and verifies the last chunk and
// the trailer, so it must not be skipped.
func atEnd(src io.Reader) error {
	var one [1]byte
	for {
		n, err := src.Read(one[:])
		if n > 0 {
			return s3err.IncompleteBody
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return bodyError(err)
		}
	}
}

func bodyError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return s3err.IncompleteBody
	}
	return err
}

// reserve waits for n bytes of the memory for bodies. pace is the body that fills them; nil when
// the bytes come from the store itself, which is never slow.
func (c *call) reserve(n int64, pace *pacedReader) (*share, error) {
	s, err := c.memory.acquire(c.r.Context(), n, &c.conn)
	if err == nil && pace != nil {
		pace.share = s
	}
	return s, err
}

// buffer gives a buffer of at least n bytes.
func (c *call) buffer(n int) *[]byte {
	if b, ok := c.buffers.Get().(*[]byte); ok && len(*b) >= n {
		return b
	}
	b := make([]byte, max(n, 16<<10))
	return &b
}

// readAll reads and verifies a small body, such as XML.
func (c *call) readAll(limit int64) ([]byte, error) {
	if c.auth.Payload == sigv4.StreamUnsignedTrailer && c.key == "" && c.r.Method == http.MethodPut {
		// As on AWS: what sets something of a bucket is signed as a whole.
		return nil, s3err.UnsignedSetting
	}
	d, err := c.readExpectations()
	if err != nil {
		return nil, err
	}
	if d.decodedLen > limit {
		return nil, s3err.EntityTooLarge
	}
	// In memory, even where inline_object is smaller than limit.
	u, err := c.receiveWithin(d, limit)
	if err != nil {
		return nil, err
	}
	defer u.release()
	return bytes.Clone(u.body), nil
}
