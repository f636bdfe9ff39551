"""The placeholders of Pixtral and Mistral 3, whose own module imports torchvision."""

from typing import Any

from transformers import ProcessorMixin


class PixtralPlaceholders(ProcessorMixin):
    """A picture's rows of placeholders, with a break after each and an end after the last."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        patch_size: int = 16,
        spatial_merge_size: int = 1,
        chat_template: Any = None,
        image_token: str = "[IMG]",  # noqa: S107
        image_break_token: str = "[IMG_BREAK]",  # noqa: S107
        image_end_token: str = "[IMG_END]",  # noqa: S107
    ) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)  # type: ignore[no-untyped-call]
        self.patch_size = patch_size
        self.spatial_merge_size = spatial_merge_size
        self.image_token = image_token
        self.image_break_token = image_break_token
        self.image_end_token = image_end_token
        self.image_token_id = tokenizer.convert_tokens_to_ids(image_token)

    @property
    def _pixels(self) -> int:
        """Height and width of what a placeholder stands for."""
        return self.patch_size * self.spatial_merge_size

    def _process_images(self, images: Any, **settings: Any) -> Any:
        return super()._process_images(images, **settings | {"patch_size": self._pixels})

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        height, width = image_inputs["image_sizes"][image_idx]
        row = self.image_token * (width // self._pixels)
        return self.image_break_token.join([row] * (height // self._pixels)) + self.image_end_token
