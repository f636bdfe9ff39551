"""A picture's placeholders and inputs are those of transformers' own processor."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from library_processors import library_processor
from PIL import Image
from tiny_pictures import FAMILIES, Family

from engine_server.modeling.pictures.errors import UnsupportedPicturesError
from engine_server.modeling.pictures.processor import PictureProcessor

pytestmark = pytest.mark.transformers
ModelFolder = Callable[[Family], Path]
SIZES = [(28, 28), (90, 41), (33, 120), (640, 480), (15, 200)]


def noise(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def changed_copy(folder: Path, to: Path, file: str, **settings: Any) -> Path:
    """Copy a model with other settings in one of its files; None: without the setting."""
    shutil.copytree(folder, to)
    content = json.loads((to / file).read_text()) | settings
    (to / file).write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
    return to


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_are_processed_as_transformers_does(
    family: Family, model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = PictureProcessor.of_folder(model_folder(family))
    library = library_processor(family, model_folder(family), monkeypatch)
    texts = []
    for size in SIZES:
        replacement, inputs = processor.process(noise(*size))
        expected = library(images=[noise(*size)], text=library.image_token, return_tensors="np")
        of_model = {
            name for name in expected if name not in ("input_ids", "attention_mask", "mm_token_type_ids")
        }
        assert inputs.keys() == of_model
        for name in of_model:
            np.testing.assert_array_equal(inputs[name], expected[name])
        assert inputs["pixel_values"].dtype == np.float32
        texts.append(replacement)
    prompt = [f"a{library.image_token}b" for _ in SIZES]
    joined = library(images=[noise(*size) for size in SIZES], text=["".join(prompt)], return_tensors="np")
    expanded = "".join(f"a{text}b" for text in texts)
    assert joined["input_ids"][0].tolist() == library.tokenizer(expanded)["input_ids"]


@pytest.mark.parametrize(
    ("family", "tokens"),
    [
        ("llava", {"<image>"}),
        (
            "idefics3",
            {"<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<row_6_col_6>"},
        ),
        ("internvl", {"<IMG_CONTEXT>", "<img>", "</img>", "<video>"}),
        ("mistral3", {"[IMG]", "[IMG_BREAK]", "[IMG_END]"}),
    ],
)
def test_tokens_of_media_include_wrappers(
    family: Family, tokens: set[str], model_folder: ModelFolder
) -> None:
    processor = PictureProcessor.of_folder(model_folder(family))
    assert tokens <= set(processor.media_tokens)
    assert not {"<s>", "</s>", "<pad>", "<end_of_utterance>"} & set(processor.media_tokens)


def test_low_detail_makes_pictures_smaller_where_the_processor_scales_by_pixels(
    model_folder: ModelFolder, tmp_path: Path
) -> None:
    large = changed_copy(
        model_folder("mistral3"), tmp_path / "large", "preprocessor_config.json", size={"longest_edge": 1024}
    )
    processor = PictureProcessor.of_folder(large)
    _, inputs = processor.process(noise(600, 800), low_detail=True)
    assert inputs["image_sizes"].tolist() == [[518, 392]]  # up to whole patches from 512 x 384
    _, inputs = processor.process(noise(100, 200), low_detail=True)
    assert inputs["image_sizes"].tolist() == [[210, 112]]


@pytest.mark.parametrize("family", ["llava", "smolvlm"])
def test_low_detail_has_no_effect_where_the_processor_has_its_own_sizes(
    family: Family, model_folder: ModelFolder
) -> None:
    processor = PictureProcessor.of_folder(model_folder(family))
    low, high = (processor.process(noise(640, 480), low_detail) for low_detail in (True, False))
    assert low[0] == high[0]
    np.testing.assert_array_equal(low[1]["pixel_values"], high[1]["pixel_values"])


def test_picture_without_tokens_is_refused(model_folder: ModelFolder) -> None:
    processor = PictureProcessor.of_folder(model_folder("lighton_ocr"))
    with pytest.raises(ValueError, match=r"has no <\|image_pad\|>"):
        processor.process(noise(200, 5))  # half as high as a token once it is scaled


def test_processor_that_does_not_tell_a_pictures_text_is_refused(
    model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder = changed_copy(
        model_folder("idefics3"),
        tmp_path / "model",
        "processor_config.json",
        processor_class="Idefics2Processor",
    )
    with pytest.raises(UnsupportedPicturesError, match="does not tell the text in the place of a picture"):
        PictureProcessor.of_folder(folder)


def test_processor_whose_text_depends_on_a_pictures_place_is_refused(
    model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def numbered(self: Any, _inputs: Any, image_idx: int, **_: Any) -> str:
        return f"{image_idx}: {self.image_token}"

    monkeypatch.setattr(transformers.LlavaProcessor, "replace_image_token", numbered)
    with pytest.raises(UnsupportedPicturesError, match="depends on the others of its prompt"):
        PictureProcessor.of_folder(model_folder("llava"))


def test_digest_is_of_settings_and_options_alone(model_folder: ModelFolder, tmp_path: Path) -> None:
    folder = model_folder("mistral3")
    same = shutil.copytree(folder, tmp_path / "same")
    other = changed_copy(folder, tmp_path / "other", "processor_config.json", spatial_merge_size=1)
    digest = PictureProcessor.of_folder(folder).settings_digest
    assert PictureProcessor.of_folder(same).settings_digest == digest
    assert PictureProcessor.of_folder(other).settings_digest != digest
    assert PictureProcessor.of_folder(folder, {"size": {"longest_edge": 42}}).settings_digest != digest


def test_size_of_the_options_is_used(model_folder: ModelFolder) -> None:
    processor = PictureProcessor.of_folder(model_folder("mistral3"), {"size": {"longest_edge": 28}})
    _, inputs = processor.process(noise(100, 100))
    assert inputs["image_sizes"].tolist() == [[28, 28]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"do_resize": False}, "takes no option 'do_resize'; it takes size"),
        ({"size": {"sides": 3}}, 'does not process pictures with the options {"size": {"sides": 3}}'),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str, model_folder: ModelFolder) -> None:
    with pytest.raises(UnsupportedPicturesError, match=message):
        PictureProcessor.of_folder(model_folder("llava"), options)


def test_class_is_found_by_the_type_of_the_model(model_folder: ModelFolder, tmp_path: Path) -> None:
    folder = changed_copy(
        model_folder("idefics3"), tmp_path / "model", "processor_config.json", processor_class=None
    )
    (folder / "preprocessor_config.json").write_text(
        json.dumps(
            json.loads((folder / "preprocessor_config.json").read_text())
            | {"image_processor_type": "Idefics3ImageProcessor"}
        )
    )
    assert PictureProcessor.of_folder(folder).image_token == "<image>"


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        ("processor_config.json", {"processor_class": "AutoModel"}, "has no AutoModel"),
        ("processor_config.json", {"processor_class": "MadeUpProcessor"}, "has no MadeUpProcessor"),
        (
            "preprocessor_config.json",
            {"image_processor_type": "MadeUp"},
            "LlavaProcessor does not process pictures",
        ),
        (
            "preprocessor_config.json",
            {"image_processor_type": "InklingImageProcessor"},
            "LlavaProcessor does not process pictures",
        ),
        ("preprocessor_config.json", {"crop_size": [1]}, "LlavaProcessor does not process pictures"),
    ],
)
def test_reason_is_given_where_there_is_no_processor(
    file: str, settings: dict[str, Any], message: str, model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder = changed_copy(model_folder("llava"), tmp_path / "model", file, **settings)
    with pytest.raises(UnsupportedPicturesError, match=message):
        PictureProcessor.of_folder(folder)


def test_reason_is_given_for_a_type_without_processor(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UnsupportedPicturesError, match="no processor for models of type llama"):
        PictureProcessor.of_folder(tmp_path)


def test_torchvision_is_not_imported(model_folder: ModelFolder) -> None:
    """Each family in a process in which torchvision and num2words can't be imported."""
    folders = [str(model_folder(family)) for family in FAMILIES]
    script = (
        "import sys\n"
        "sys.modules.update(torchvision=None, num2words=None)\n"
        "from pathlib import Path\n"
        "from engine_server.modeling.pictures.processor import PictureProcessor\n"
        "for folder in sys.argv[1:]: PictureProcessor.of_folder(Path(folder))\n"
    )
    subprocess.run([sys.executable, "-c", script, *folders], check=True)
