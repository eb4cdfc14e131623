package sigv4

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

const (
	maxChunkLine = 512
	maxTrailers  = 8
	// minChunk is the least size, bytes, of every chunk but the last, as on AWS: the head of a smaller one weighs as much.
	minChunk    = 8 << 10
	emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// Chunks decodes an aws-chunked body. It gives io.EOF only after the whole chain of
// signatures, the trailer and the decoded length were verified; until then nothing that
// was read may be trusted.
type Chunks struct {
	a        *Auth
	r        *bufio.Reader
	want     int64 // decoded bytes still due
	left     int64 // in this chunk
	small    bool  // a chunk was smaller than minChunk, so it has to be the last
	previous string
	given    string // the chunk's signature
	sum      hash.Hash
	trailer  http.Header
	names    []string // allowed in the trailer, lower case
	done     bool
	err      error
}

// Chunked says whether the body is aws-chunked.
func (a *Auth) Chunked() bool { return a.Payload >= StreamSigned }

// NewChunks reads a body of decoded bytes; trailers are the names of x-amz-trailer.
func (a *Auth) NewChunks(body io.Reader, decoded int64, trailers []string) *Chunks {
	c := &Chunks{a: a, r: bufio.NewReaderSize(body, 16<<10), want: decoded, previous: a.signature, names: trailers}
	if a.Payload != StreamUnsignedTrailer {
		c.sum = sha256.New()
	}
	c.err = c.beginChunk()
	return c
}

// Trailer gives the verified trailer after io.EOF.
func (c *Chunks) Trailer() http.Header { return c.trailer }

// Read implements io.Reader. Errors are *s3err.Error.
func (c *Chunks) Read(p []byte) (int, error) {
	for c.err == nil && c.left == 0 {
		if c.done {
			c.err = io.EOF
		} else if c.err = c.endChunk(); c.err == nil {
			c.err = c.beginChunk()
		}
	}
	if c.err != nil {
		return 0, c.err
	}
	// Never reads beyond the chunk: the bytes behind it are the next chunk's header.
	if int64(len(p)) > c.left {
		p = p[:c.left]
	}
	n, err := c.r.Read(p)
	c.left -= int64(n)
	if c.sum != nil {
		c.sum.Write(p[:n])
	}
	if err != nil {
		c.err = shortBody(err)
	}
	return n, nil
}

// errCutBody answers a body whose chunks are not what their sizes say.
var errCutBody = s3err.IncompleteBody.With("The request body terminated unexpectedly")

func shortBody(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errCutBody
	}
	return err
}

func (c *Chunks) readLine() (string, error) {
	b, err := c.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) || len(b) > maxChunkLine {
		return "", errCutBody
	}
	if err != nil {
		return "", shortBody(err)
	}
	b, ok := bytes.CutSuffix(b, []byte("\r\n"))
	if !ok || bytes.IndexByte(b, '\r') >= 0 {
		return "", errCutBody
	}
	return string(b), nil
}

// beginChunk reads a chunk's header. The chunk of size 0 is the last one: the rest of the body is
// read and verified with it.
func (c *Chunks) beginChunk() error {
	line, err := c.readLine()
	if err != nil {
		return err
	}
	size, ext, _ := strings.Cut(line, ";")
	n, perr := strconv.ParseUint(size, 16, 62)
	if perr != nil || len(size) > 16 {
		return errCutBody
	}
	if c.sum != nil {
		sig, ok := strings.CutPrefix(ext, "chunk-signature=")
		if !ok || len(sig) != 2*sha256.Size {
			return errCutBody
		}
		c.given = sig
		c.sum.Reset()
	}
	// The declared length bounds what a client may send, so it is enforced before the data is read.
	if int64(n) > c.want {
		return s3err.IncompleteBody
	}
	if n > 0 && c.small {
		return s3err.InvalidChunkSize
	}
	c.small = n < minChunk
	c.want -= int64(n)
	c.left = int64(n)
	if n > 0 {
		return nil
	}
	if c.want != 0 {
		return s3err.IncompleteBody
	}
	return c.endBody()
}

// endChunk reads the CRLF behind a chunk's data and verifies the chunk's signature.
func (c *Chunks) endChunk() error {
	line, err := c.readLine()
	if err != nil {
		return err
	}
	if line != "" {
		return errCutBody
	}
	return c.checkChunkSignature()
}

func (c *Chunks) checkChunkSignature() error {
	if c.sum == nil {
		return nil
	}
	return c.checkSignature("AWS4-HMAC-SHA256-PAYLOAD", emptySHA256+"\n"+hex.EncodeToString(c.sum.Sum(nil)))
}

func (c *Chunks) checkSignature(kind, tail string) error {
	text := kind + "\n" + c.a.date + "\n" + c.a.scope + "\n" + c.previous + "\n" + tail
	// Each signature covers the one before, so chunks cannot be dropped, repeated or reordered.
	want := sign(c.a.key, []byte(text))
	if subtle.ConstantTimeCompare([]byte(want), []byte(c.given)) != 1 {
		return s3err.SignatureDoesNotMatch
	}
	c.previous = want
	return nil
}

// endBody verifies the last chunk and reads and verifies the trailer.
func (c *Chunks) endBody() error {
	if err := c.checkChunkSignature(); err != nil {
		return err
	}
	c.trailer = http.Header{}
	c.given = ""
	var canonical strings.Builder
	for n := 0; ; n++ {
		if c.a.Payload == StreamSigned {
			if _, err := c.r.Peek(1); n == 0 && errors.Is(err, io.EOF) {
				break // some clients leave the last CRLF out
			}
		}
		line, err := c.readLine()
		if err != nil {
			return err
		}
		if line == "" {
			break
		}
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		switch {
		case !ok || n > maxTrailers || c.given != "":
			return s3err.MalformedTrailer
		case name == "x-amz-trailer-signature" && c.a.Payload == StreamSignedTrailer:
			if len(value) != 2*sha256.Size {
				return errCutBody
			}
			c.given = value
		case c.a.Payload == StreamSigned || !contains(c.names, name) || c.trailer.Get(name) != "":
			return s3err.MalformedTrailer
		default:
			c.trailer.Set(name, value)
			canonical.WriteString(name + ":" + value + "\n")
		}
	}
	for _, n := range c.names {
		if c.trailer.Get(n) == "" && c.a.Payload != StreamSigned {
			return s3err.MalformedTrailer
		}
	}
	if c.a.Payload == StreamSignedTrailer {
		sum := sha256.Sum256([]byte(canonical.String()))
		if err := c.checkSignature("AWS4-HMAC-SHA256-TRAILER", hex.EncodeToString(sum[:])); err != nil {
			return err
		}
	}
	// Unsigned bytes behind the last chunk would be the start of something smuggled.
	if _, err := c.r.ReadByte(); err == nil {
		return errCutBody
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	c.done = true
	return nil
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
